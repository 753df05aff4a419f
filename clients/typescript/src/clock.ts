/** The clock of locks: it goes on while the machine is suspended, and no operator can set it back. */

/** Seconds since some moment in the past; never going backwards. */
export type Clock = () => number;

/** A lead of the other clock from which on the machine was suspended: below, it may be rounding. */
const UPTIME_LEAD = 0.03;
const TIME_OF_DAY_LEAD = 1;

/**
 * Return the clock of this platform.
 *
 * `performance.now()` stands still while the machine is suspended, and leases go on running out meanwhile. So another
 * clock is read beside it: the uptime of Node on Linux, else the time of day. Its lead counts as time that has passed.
 */
export function systemClock(): Clock {
  const uptime = uptimeOfLinux();
  return uptime === null
    ? withSleep(monotonic, () => Date.now() / 1000, TIME_OF_DAY_LEAD)
    : withSleep(monotonic, uptime, UPTIME_LEAD);
}

/**
 * Return `awake` plus the time by which `other` has gained on it, in steps of more than `lead`.
 *
 * If `other` was set back, what it gains from then on still counts.
 */
export function withSleep(awake: Clock, other: Clock, lead: number): Clock {
  let start = other() - awake();
  let slept = 0;
  return () => {
    const now = awake();
    const gained = other() - now - start;
    if (gained > slept + lead) slept = gained;
    else if (gained < slept - lead) start += gained - slept;
    return now + slept;
  };
}

function monotonic(): number {
  return performance.now() / 1000;
}

interface Os {
  uptime(): number;
  platform(): string;
}

/** No import: this module is for browsers, too. */
function uptimeOfLinux(): Clock | null {
  const { process } = globalThis as { process?: { getBuiltinModule?: (name: string) => unknown } };
  const os = process?.getBuiltinModule?.("node:os") as Os | undefined;
  return os?.platform() === "linux" ? () => os.uptime() : null;
}
