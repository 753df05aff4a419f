// The timeline: labels under the pointer and the focus, and zooming by dragging. Without it, links do the same.
"use strict";

(() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const LEAST = 6; // units of the drawing; a shorter drag is a click

  function tips(canvas) {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("aria-hidden", "true"); // screen readers get the same text from the labels
    canvas.append(tip);

    // These appear at once, and on focus, too. The tooltips of the browser would cover them.
    for (const title of canvas.querySelectorAll("svg g > title, svg a > title")) {
      title.parentNode.dataset.tip = title.textContent;
      title.remove();
    }

    function show(event) {
      const about = event.target.closest("[data-tip]");
      if (!about) return hide();
      tip.textContent = about.dataset.tip;
      tip.hidden = false;
      const box = about.getBoundingClientRect();
      const frame = canvas.getBoundingClientRect();
      const middle = event.clientX || box.left + box.width / 2;
      const left = middle - frame.left + canvas.scrollLeft - tip.offsetWidth / 2;
      const above = box.top - frame.top - tip.offsetHeight - 8;
      tip.style.left = `${Math.max(canvas.scrollLeft, Math.min(left, canvas.scrollLeft + canvas.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${above >= 0 ? above : box.bottom - frame.top + 8}px`;
    }
    function hide() {
      tip.hidden = true;
    }
    canvas.addEventListener("pointerover", show);
    canvas.addEventListener("pointerleave", hide);
    canvas.addEventListener("focusin", show);
    canvas.addEventListener("focusout", hide);
    canvas.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  }

  function zoom(canvas) {
    const svg = canvas.querySelector("svg");
    const [left, right] = [Number(canvas.dataset.left), Number(canvas.dataset.right)];
    const [since, until] = [Date.parse(canvas.dataset.since), Date.parse(canvas.dataset.until)];
    let begun = null;
    let area = null;

    function place(event) {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      return Math.min(Math.max(point.x, left), right);
    }
    function moment(x) {
      return new Date(since + ((x - left) / (right - left)) * (until - since)).toISOString();
    }
    function end() {
      if (area) area.remove();
      begun = area = null;
      canvas.parentNode.classList.remove("selecting");
    }

    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch" || event.target.closest("a")) return;
      begun = place(event);
    });
    window.addEventListener("pointermove", (event) => {
      if (begun === null) return;
      const x = place(event);
      if (!area && Math.abs(x - begun) < LEAST) return;
      if (!area) {
        area = document.createElementNS(NAMESPACE, "rect");
        area.setAttribute("class", "selection");
        area.setAttribute("y", 0);
        area.setAttribute("height", svg.viewBox.baseVal.height);
        svg.append(area);
        canvas.parentNode.classList.add("selecting");
      }
      area.setAttribute("x", Math.min(begun, x));
      area.setAttribute("width", Math.abs(x - begun));
    });
    window.addEventListener("pointerup", (event) => {
      if (area) {
        const [from, to] = [begun, place(event)].sort((one, other) => one - other);
        const address = new URL(location.href);
        for (const name of ["span", "whole", "before", "after"]) address.searchParams.delete(name);
        address.searchParams.set("since", moment(from));
        address.searchParams.set("until", moment(to));
        location.assign(address);
      }
      end();
    });
    window.addEventListener("keydown", (event) => event.key === "Escape" && end());
  }

  // A narrow screen has room for a part of the picture. That with the newest sign is what people came for.
  function reveal(canvas) {
    const signs = [...canvas.querySelectorAll("svg .mark, svg .takeover")].map((one) => one.getBoundingClientRect().right);
    const edge = canvas.getBoundingClientRect().right;
    if (signs.length) canvas.scrollLeft = Math.max(0, Math.max(...signs) - edge + 24);
  }

  for (const canvas of document.querySelectorAll(".timeline .canvas[data-since]")) {
    reveal(canvas);
    tips(canvas);
    zoom(canvas);
  }
})();
