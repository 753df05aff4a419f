// The live page: shows new entries on top, counts them while it is paused, and shows the state of the connection.
"use strict";

(() => {
  const KEPT = 300; // rows
  const ANNOUNCED_EVERY = 4000; // milliseconds between announcements of a screen reader

  const table = document.getElementById("live");
  const body = table.tBodies[0];
  const pause = document.getElementById("pause");
  const arrived = document.getElementById("arrived");
  const connection = document.getElementById("connection");
  let paused = false;
  let held = []; // [rows, count], newest last, while it is paused
  let missed = 0; // the number of entries that arrived while it was paused
  let unsaid = 0;

  function show(rows) {
    const inside = document.createElement("tbody");
    inside.innerHTML = rows; // the gateway has escaped all values in it
    const added = [...inside.rows];
    for (const row of added) row.classList.add("new");
    body.prepend(...added);
    while (body.rows.length > KEPT) body.rows[body.rows.length - 1].remove();
    document.getElementById("nothing").hidden = true;
    setTimeout(() => added.forEach((row) => row.classList.remove("new")), 1500);
  }

  function count(number, what) {
    return `${number.toLocaleString("en")} ${what}`;
  }

  function take(event) {
    const { count: number, rows } = JSON.parse(event.data);
    if (paused) {
      missed += number;
      held.push(rows);
      if (held.length > KEPT) held.shift();
      pause.textContent = `Resume (${missed.toLocaleString("en")} new)`;
    } else {
      show(rows);
      unsaid += number;
    }
  }

  setInterval(() => {
    if (unsaid) arrived.textContent = `${count(unsaid, "new")} in the last few seconds`;
    else if (!paused) arrived.textContent = "";
    unsaid = 0;
  }, ANNOUNCED_EVERY);

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) {
      arrived.textContent = "paused";
    } else {
      held.forEach(show);
      arrived.textContent = missed ? `${count(missed, "came")} while it was paused` : "";
      held = [];
      missed = 0;
    }
    pause.textContent = paused ? "Resume" : "Pause";
  });

  function say(state, words) {
    connection.dataset.state = state;
    connection.textContent = words;
  }

  let stream = null;
  let last = null;
  function connect() {
    const address = new URL(table.dataset.stream, location.href);
    if (last !== null) address.searchParams.set("after", last);
    stream = new EventSource(address);
    stream.addEventListener("open", () => say("open", "live"));
    for (const kind of ["entries", "storm"]) {
      stream.addEventListener(kind, (event) => {
        last = event.lastEventId;
        take(event);
      });
    }
    stream.addEventListener("error", () => {
      say("lost", "connection lost, trying again");
      // A browser gives up after an answer that is no stream. A restarting gateway gives such answers.
      if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
    });
  }
  say("none", "connecting");
  connect();
  window.addEventListener("pagehide", () => stream.close());
  window.addEventListener("pageshow", (event) => event.persisted && connect());
})();
