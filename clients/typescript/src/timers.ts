/** Timers that leave nothing behind. */

/** Wait for so many seconds. Rejects with the reason of `signal`. The process stays alive meanwhile. */
export async function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", aborted);
    };
    const aborted = (): void => {
      end();
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      end();
      resolve();
    }, milliseconds(seconds));
    signal?.addEventListener("abort", aborted);
  });
}

/** Run `work` with a signal that is aborted after so many seconds, or with `outer`. Nothing is left of it afterwards. */
export async function within<T>(
  seconds: number,
  outer: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  const aborted = (): void => {
    controller.abort(outer?.reason);
  };
  if (outer?.aborted === true) aborted();
  const timer = setTimeout(() => {
    controller.abort(new DOMException(`There was no answer within ${seconds.toFixed(2)} seconds.`, "TimeoutError"));
  }, milliseconds(seconds));
  outer?.addEventListener("abort", aborted);
  try {
    return await raced(work(controller.signal), controller.signal);
  } finally {
    clearTimeout(timer);
    outer?.removeEventListener("abort", aborted);
  }
}

/** Return what comes of `work`, or reject with the reason of `signal`, whichever is first. */
export async function raced<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  work.catch(() => undefined);
  let aborted = (): void => undefined;
  const ended = new Promise<never>((_, reject) => {
    aborted = () => {
      reject(signal.reason as Error);
    };
    if (signal.aborted) aborted();
    else signal.addEventListener("abort", aborted);
  });
  try {
    return await Promise.race([work, ended]);
  } finally {
    signal.removeEventListener("abort", aborted);
  }
}

/** Call `action` after so many seconds. Returns the way to prevent it. It keeps no process alive. */
export function later(seconds: number, action: () => void): () => void {
  const timer: unknown = setTimeout(action, milliseconds(seconds));
  if (typeof timer === "object" && timer !== null && "unref" in timer) (timer as { unref(): void }).unref();
  return () => {
    clearTimeout(timer as number);
  };
}

/** The longest delay of a timer is 24.8 days; a longer one would end at once. */
function milliseconds(seconds: number): number {
  return Math.min(Math.max(seconds * 1000, 0), 2 ** 31 - 1);
}
