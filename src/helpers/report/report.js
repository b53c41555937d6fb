// Draws the figures in the colours of the reader's scheme and in the width there is; on paper in those of paper.
// Data are in script elements "figure-N-data", places are the elements "figure-N".
"use strict";
{
  const dark = matchMedia("screen and (prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 30rem)");
  const coarse = matchMedia("(pointer: coarse)");
  const PAPER = { fg: "#1b1f24", bg: "#ffffff", soft: "#f3f5f7", dim: "#59636e", isDark: false };
  const PAPER_WIDTH_PX = 690; // A4 and Letter less the margins of print.css
  const ANSWER_INSET_PX = 40; // its padding and border
  const TEXT_CONTRAST = 4.5; // WCAG 2.2, 1.4.3
  const MARK_CONTRAST = 3; // WCAG 2.2, 1.4.11
  const COLOUR = /^(#[0-9a-f]{3}|#[0-9a-f]{6}|rgba?\([\d.,% ]+\)|black|white|gr[ae]y)$/i;
  const NAMES = { black: "#000000", white: "#ffffff", gray: "#808080", grey: "#808080" };

  const parse = (text) => {
    let hex = NAMES[text.toLowerCase()] ?? text;
    if (!hex.startsWith("#")) return hex.match(/[\d.]+/g).map(Number);
    if (hex.length === 4) hex = `#${[...hex.slice(1)].map((digit) => digit + digit).join("")}`;
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  const write = ([r, g, b, alpha = 1]) => `rgba(${Math.round(r)},${Math.round(g)},${Math.round(b)},${alpha})`;
  const mix = (a, b, share) => [0, 1, 2].map((i) => a[i] + (b[i] - a[i]) * share);

  // Relative luminance and contrast as WCAG 2.2 defines them.
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };

  // A colour made on white, as it is readable in a scheme: greys are mirrored, others move towards the text's colour.
  // Figures stand on bg and on soft, which is nearer to the text's colour in either scheme.
  const adapt = (text, scheme, least) => {
    const [fg, bg, soft] = [scheme.fg, scheme.bg, scheme.soft].map(parse);
    const colour = parse(text);
    const alpha = colour[3] ?? 1;
    const isGrey = Math.max(...colour.slice(0, 3)) - Math.min(...colour.slice(0, 3)) < 12;
    const lightness = colour[0] / 255;
    let made = isGrey && scheme.isDark ? mix(fg, bg, lightness) : colour.slice(0, 3);
    if (!(isGrey && lightness > 0.85)) {
      for (let i = 0; i < 20 && contrast(made, soft) < least; i += 1) made = mix(made, fg, 0.1);
    }
    return write([...made, alpha]);
  };

  const inText = (text, scheme) => text.replace(/(<span style='[^'>]*color: ?)(#[0-9a-f]{6})/gi,
    (_, before, colour) => before + adapt(colour, scheme, TEXT_CONTRAST));

  // A copy of a figure's data or layout in the colours of a scheme.
  const recolour = (value, scheme, key = "", isText = false) => {
    if (Array.isArray(value)) return value.map((item) => recolour(item, scheme, key, isText));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => {
        if (name === "colorscale" || name === "bdata" || name === "customdata") return [name, item];
        return [name, recolour(item, scheme, name, isText || name.endsWith("font"))];
      }));
    }
    if (typeof value !== "string") return value;
    if (/colou?r(way)?$/i.test(key) && COLOUR.test(value)) {
      if (isText) return adapt(value, scheme, TEXT_CONTRAST);
      return scheme.isDark ? adapt(value, scheme, MARK_CONTRAST) : value;
    }
    return key === "text" ? inText(value, scheme) : value;
  };

  // Plotly itself picks black or white for text inside bars.
  const withoutTextInBars = (trace) => {
    if (trace.type !== "bar" || trace.textposition === "outside") return trace;
    const { textfont: { color: _, ...textfont } = {}, insidetextfont: { color: __, ...insidetextfont } = {}, ...rest } = trace;
    return { ...rest, textfont, insidetextfont };
  };

  const inScheme = ({ data, layout }, scheme, width) => {
    const made = recolour(layout, scheme);
    made.paper_bgcolor = "rgba(0,0,0,0)";
    made.plot_bgcolor = "rgba(0,0,0,0)";
    made.modebar = { ...made.modebar, bgcolor: "rgba(0,0,0,0)", color: scheme.dim, activecolor: scheme.fg };
    made.font = { ...made.font, color: scheme.fg };
    made.hoverlabel = { ...made.hoverlabel, bgcolor: scheme.bg, font: { ...made.hoverlabel?.font, color: scheme.fg } };
    const axes = made.template?.layout ?? {};
    for (const name of ["xaxis", "yaxis"]) {
      axes[name] = { ...axes[name], linecolor: scheme.fg, tickcolor: scheme.fg,
        gridcolor: scheme.isDark ? "rgba(228,232,236,0.14)" : "#eeeeee" };
    }
    if (narrow.matches && !width) {
      made.margin = { ...made.margin, l: Math.min(made.margin?.l ?? 80, 58), r: Math.min(made.margin?.r ?? 40, 28) };
      made.font.size = 10;
    }
    if (coarse.matches) made.dragmode = false; // a finger scrolls the page
    if (width) Object.assign(made, { width, autosize: false });
    return { data: data.map((trace) => recolour(withoutTextInBars(trace), scheme)), layout: made };
  };

  const screenScheme = () => {
    const style = getComputedStyle(document.documentElement);
    const [fg, bg, soft, dim] = ["--fg", "--bg", "--soft", "--dim"].map((name) => style.getPropertyValue(name).trim());
    return { fg, bg, soft, dim, isDark: dark.matches };
  };

  const figures = [...document.querySelectorAll(".plot .canvas")].map((place) => ({
    place, content: JSON.parse(document.getElementById(`${place.id}-data`).textContent),
  }));

  // Slanted tick labels push the axis title down, maybe onto the legend: make room for both.
  const lowerLegend = (place) => {
    const [legend, title] = [".legend", ".xtitle"].map((name) => place.querySelector(name)?.getBoundingClientRect());
    if (!legend || !title || legend.top < title.top - title.height) return;
    const gap = title.bottom + 6 - legend.top;
    const { height, _size: inner, legend: { y } } = place._fullLayout;
    if (gap <= 1) return;
    Plotly.relayout(place, { height: height + gap, "margin.b": inner.b + gap, "legend.y": y - gap / inner.h });
  };

  const draw = ({ place, content }, scheme, width) => {
    const { data, layout } = inScheme(content, scheme, width);
    const config = { responsive: !width, displaylogo: false, displayModeBar: narrow.matches || coarse.matches ? false : "hover" };
    Plotly.react(place, data, layout, config);
    lowerLegend(place);
  };
  const drawAll = () => figures.forEach((figure) => draw(figure, screenScheme()));

  // The first figure at once, the others when the reader has the first screen.
  const queue = [...figures];
  const drawNext = () => {
    const figure = queue.shift();
    if (!figure) {
      document.documentElement.dataset.drawn = "all";
      return;
    }
    draw(figure, screenScheme());
    setTimeout(drawNext);
  };
  drawNext();

  dark.addEventListener("change", drawAll);
  narrow.addEventListener("change", drawAll);

  let closed = [];
  addEventListener("beforeprint", () => {
    queue.length = 0;
    closed = [...document.querySelectorAll("details:not(.code):not([open])")];
    closed.forEach((details) => { details.open = true; });
    figures.forEach((figure) => {
      const inset = figure.place.closest(".answer") ? ANSWER_INSET_PX : 0;
      draw(figure, PAPER, PAPER_WIDTH_PX - inset);
    });
  });
  addEventListener("afterprint", () => {
    closed.forEach((details) => { details.open = false; });
    drawAll();
  });
}
