// Runs in the head of a page before its own script, and sends what is wrong with the page to the page around it: labels that
// cover each other, a page that scrolls sideways, an axis that ends below what it measures, and ticks at odd numbers.
"use strict";
{
  // Texts of canvases since these were last cleared, outside of clips: what a clip holds may be cut off.
  const drawn = new Map(), clips = new WeakMap(), canvas = CanvasRenderingContext2D.prototype;
  const own = name => canvas[name];
  const [clear, text, save, restore, clip] = ["clearRect", "fillText", "save", "restore", "clip"].map(own);
  const depths = context => clips.get(context) || clips.set(context, [0]).get(context);
  canvas.clearRect = function (...box) { drawn.set(this.canvas, []); return clear.apply(this, box); };
  canvas.save = function () { const known = depths(this); known.push(known[known.length - 1]); return save.apply(this); };
  canvas.restore = function () { const known = depths(this); if (known.length > 1) known.pop(); return restore.apply(this); };
  canvas.clip = function (...path) { const known = depths(this); known[known.length - 1]++; return clip.apply(this, path); };
  canvas.fillText = function (words, x, y, ...rest) {
    const known = depths(this);
    if (!known[known.length - 1]) {
      if (!drawn.has(this.canvas)) drawn.set(this.canvas, []);
      const size = this.measureText(words), middle = this.textBaseline === "middle" ? 5 : 10;
      drawn.get(this.canvas).push({ words, left: x, right: x + size.width, top: y - middle, bottom: y - middle + 10 });
    }
    return text.apply(this, [words, x, y, ...rest]);
  };

  // Pairs of boxes of different owners that share more than a pixel or two.
  const overlaps = boxes => {
    const sorted = [...boxes].sort((a, b) => a.top - b.top), found = [];
    sorted.forEach((one, number) => {
      for (let next = number + 1; next < sorted.length && sorted[next].top < one.bottom - 2; next++) {
        const other = sorted[next];
        if (other.owner !== one.owner && other.left < one.right - 1 && one.left < other.right - 1)
          found.push(`"${one.words}" and "${other.words}" overlap`);
      }
    });
    return found;
  };
  const texts = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), boxes = [];
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (!node.data.trim() || node.parentElement.closest("script, style, title")) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const { left, right, top, bottom } of range.getClientRects())
        if (right > left) boxes.push({ owner: node, words: node.data.trim().slice(0, 60), left, right, top, bottom });
    }
    return boxes;
  };
  const axes = () => [...document.querySelectorAll("svg")].flatMap(svg => {
    const ticks = [...svg.querySelectorAll("text.tick.y")].map(tick => parseFloat(tick.textContent));
    const boxes = kind => [...svg.querySelectorAll(kind)].map(element => element.getBoundingClientRect());
    const [lines, shapes] = [boxes("path.tick.y"), boxes("path.shape, path.mark")];
    const found = [];
    if (shapes.length && Math.min(...lines.map(line => line.top)) > Math.min(...shapes.map(shape => shape.top)) + 1)
      found.push("an axis ends below its peak");
    const between = ticks.length > 1 && shapes.length ? Math.abs(ticks[1] - ticks[0]) : 1;
    const digit = Number(between.toExponential(6).split("e")[0]);
    if (![1, 2, 5].includes(digit)) found.push(`ticks are ${between} apart`);
    const frame = svg.getBoundingClientRect();
    if (boxes("text").some(box => box.left < frame.left - 1 || box.right > frame.right + 1)) found.push("a label is cut off");
    return found;
  });
  const check = () => {
    const { scrollWidth, clientWidth } = document.documentElement;
    const problems = [...overlaps(texts()), ...axes()];
    if (scrollWidth > clientWidth) problems.push(`the page is ${scrollWidth} wide in a window of ${clientWidth}`);
    for (const boxes of drawn.values()) problems.push(...overlaps(boxes.map((box, owner) => ({ ...box, owner }))));
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const labels = texts().length + [...drawn.values()].reduce((sum, boxes) => sum + boxes.length, 0);
    parent.postMessage({ width: innerWidth, isDark, labels, problems }, "*");
  };
  // The page is drawn by then; a timer of a frame out of sight could wait for long.
  addEventListener("load", check);
}
