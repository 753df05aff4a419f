// Charts over time, drawn by uPlot from the table behind them: its first column is the time, every other one a series.
// A figure may have several charts with scales of their own, so that few refusals are visible beside many writes.
"use strict";

(() => {
  const charts = new Map();
  const whole = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8, 1e9];

  // The style sheet has the colours, in classes named after the series.
  function colour(name) {
    const probe = document.createElement("span");
    probe.className = `series-${name}`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  const faint = (solid) => solid.replace("rgb(", "rgba(").replace(")", ", 0.15)");

  function read(table, names) {
    const rows = [...table.tBodies[0].rows];
    const times = rows.map((row) => Date.parse(row.querySelector("time").dateTime) / 1000);
    const columns = [...table.tHead.rows[0].cells].map((head, index) => ({ head, index }));
    const shown = columns.filter(({ head }) => names.includes(head.dataset.series));
    const values = shown.map(({ index }) => rows.map((row) => Number(row.cells[index].dataset.value)));
    return { heads: shown.map(({ head }) => head), data: [times, ...values] };
  }

  function axes() {
    const line = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("axis"), grid: line, ticks: line };
    const day = "\n{MM}-{DD}";
    const row = (least, format, withDay) => [least, format, withDay, null, withDay, null, null, null, 1];
    return [
      { ...axis, values: [row(86400, "{MM}-{DD}", null), row(3600, "{HH}:{mm}", day), row(60, "{HH}:{mm}", day)] },
      { ...axis, size: 60, incrs: whole },
    ];
  }

  function draw(canvas) {
    const { heads, data } = read(canvas.closest("figure").querySelector("details table"), canvas.dataset.shows.split(" "));
    charts.get(canvas)?.destroy();
    charts.delete(canvas);
    if (data[0].length < 2) return;
    const [first, last, step] = [data[0][0], data[0].at(-1), data[0][1] - data[0][0]];
    const series = heads.map((head) => {
      const stroke = colour(head.dataset.series);
      return { label: head.textContent, stroke, fill: faint(stroke), width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } };
    });
    const chart = new uPlot(
      {
        width: canvas.clientWidth,
        height: Number(canvas.dataset.height),
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
        cursor: { drag: { x: false, y: false }, sync: { key: "overview" } },
        scales: {
          x: { range: () => [first, last + step] },
          y: { range: (_, low, high) => [0, Math.max(4, high * 1.08)] },
        },
        axes: axes(),
        series: [{ label: "From", value: "{YYYY}-{MM}-{DD} {HH}:{mm}" }, ...series],
      },
      data,
      canvas,
    );
    charts.set(canvas, chart);
  }

  const all = () => document.querySelectorAll("figure.chart .canvas");
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const chart = charts.get(target);
      if (chart && target.clientWidth && chart.width !== target.clientWidth) {
        chart.setSize({ width: target.clientWidth, height: chart.height });
      }
    }
  });

  function show() {
    for (const canvas of charts.keys()) if (!canvas.isConnected) charts.delete(canvas);
    for (const canvas of all()) {
      draw(canvas);
      sizes.observe(canvas);
    }
  }

  document.addEventListener("DOMContentLoaded", show);
  document.addEventListener("htmx:afterSettle", show);
  document.addEventListener("themechange", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
})();
