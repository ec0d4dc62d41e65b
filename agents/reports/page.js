"use strict";
(() => {
  const tip = document.getElementById("tip");
  let cursor = null;

  const written = (value) =>
    Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));

  const part = (name, text, style) => {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    if (style) made.className = style;
    return made;
  };

  // The index of the number in an increasing list that is nearest to x.
  const nearest = (list, x) => {
    let low = 0, high = list.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (list[middle] < x) low = middle; else high = middle;
    }
    return x - list[low] < list[high] - x ? low : high;
  };

  const hide = () => {
    tip.hidden = true;
    if (cursor) cursor.remove();
    cursor = null;
  };

  // Shows the values of all lines of a chart at the step under the pointer.
  const show = (plot, event) => {
    const chart = JSON.parse(plot.dataset.chart);
    const box = plot.getBoundingClientRect();
    const x = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1) * chart.end;
    const places = chart.lines.map((line) => nearest(line.x, x));
    const steps = chart.lines.map((line, i) => line.x[places[i]]);
    const step = steps.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
    const rows = [part("b", `${step.toLocaleString("en")} ${chart.unit}`)];
    chart.lines.forEach((line, i) => {
      if (x > line.x[line.x.length - 1] && steps[i] !== step) return;
      const row = part("div", "", line.colour);
      const at = places[i];
      const range = line.low && ` (${written(line.low[at])} to ${written(line.high[at])})`;
      row.append(part("i"), part("em", line.name), part("span", written(line.y[at]) + (range || "")));
      rows.push(row);
    });
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth
      ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8))}px`;
    if (!cursor || cursor.parentNode !== plot) {
      if (cursor) cursor.remove();
      cursor = plot.appendChild(part("div", "", "cursor"));
    }
    cursor.style.left = `${(100 * step) / (chart.end || 1)}%`;
  };

  document.addEventListener("pointermove", (event) => {
    const plot = event.target.closest(".plot");
    if (plot) show(plot, event); else hide();
  });
  document.addEventListener("pointerdown", (event) => {
    const plot = event.target.closest(".plot");
    if (plot) show(plot, event);
  });
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("pointerleave", hide);

  const pause = Number(document.body.dataset.refresh);
  if (!pause) return;

  // A live page: asks for itself again, and replaces the parts that have changed and no others.
  let known = null;
  let sources = new Map();
  const parts = (root) => [...root.querySelectorAll("header.page, #glance, main > section, footer")];
  const remember = (root) => new Map(parts(root).map((one) => [one.id, one.outerHTML]));
  sources = remember(document);

  const update = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html");
    const fresh = remember(next);
    document.title = next.title;
    if ([...fresh.keys()].join() !== [...sources.keys()].join()) {
      document.querySelector("header.page").replaceWith(next.querySelector("header.page"));
      document.querySelector("main").replaceWith(next.querySelector("main"));
    } else {
      for (const one of parts(next)) {
        if (fresh.get(one.id) === sources.get(one.id)) continue;
        const old = document.getElementById(one.id);
        const open = [...old.querySelectorAll("details")].map((each) => each.open);
        [...one.querySelectorAll("details")].forEach((each, i) => { each.open = open[i]; });
        old.replaceWith(one);
      }
    }
    sources = fresh;
  };

  const look = async () => {
    try {
      const answer = await fetch(location.pathname, {
        cache: "no-store", headers: known ? { "If-None-Match": known } : {},
      });
      if (answer.status === 200) {
        known = answer.headers.get("ETag");
        update(await answer.text());
      }
      mark(answer.ok || answer.status === 304);
    } catch {
      mark(false);
    }
    setTimeout(look, pause);
  };
  const mark = (connected) => {
    const live = document.getElementById("live");
    live.textContent = connected ? "live" : "not connected";
    live.classList.toggle("lost", !connected);
  };
  setTimeout(look, pause);
})();
