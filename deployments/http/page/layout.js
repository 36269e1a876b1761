// Tidy trees in linear time: Walker's algorithm as Buchheim, Jünger and Leipert improved it (2002).
// Every node gets `breadth`, its place among the nodes of its level, and `level`, its distance from the root.

export function tidy(root) {
  prepare(root, null, 0, 0);
  walk(root);
  let least = Infinity, most = -Infinity, levels = 0;
  const stack = [[root, -root.prelim]];
  while (stack.length) {
    const [node, shift] = stack.pop();
    node.breadth = node.prelim + shift;
    least = Math.min(least, node.breadth);
    most = Math.max(most, node.breadth);
    levels = Math.max(levels, node.level);
    for (const child of node.below) stack.push([child, shift + node.mod]);
  }
  return { least, most, levels };
}

function prepare(node, above, number, level) {
  Object.assign(node, { above, number, level, prelim: 0, mod: 0, change: 0, shift: 0, thread: null, ancestor: node });
  node.below.forEach((child, index) => prepare(child, node, index, level + 1));
}

function walk(node) {
  const { below } = node;
  const left = node.number ? node.above.below[node.number - 1] : null;
  if (!below.length) {
    node.prelim = left ? left.prelim + 1 : 0;
    return;
  }
  let ancestor = below[0];
  for (const child of below) {
    walk(child);
    ancestor = apportion(child, ancestor);
  }
  let shift = 0, change = 0;
  for (let index = below.length - 1; index >= 0; index--) {
    const child = below[index];
    child.prelim += shift;
    child.mod += shift;
    change += child.change;
    shift += child.shift + change;
  }
  const middle = (below[0].prelim + below[below.length - 1].prelim) / 2;
  node.prelim = left ? left.prelim + 1 : middle;
  if (left) node.mod = node.prelim - middle;
}

const firstBelow = (node) => node.below[0] ?? node.thread;
const lastBelow = (node) => node.below[node.below.length - 1] ?? node.thread;

// Moves a subtree away from those before it, along the contours where they face each other.
function apportion(node, ancestor) {
  if (!node.number) return ancestor;
  let innerRight = node, outerRight = node;
  let innerLeft = node.above.below[node.number - 1], outerLeft = node.above.below[0];
  let [sumInnerRight, sumOuterRight, sumInnerLeft, sumOuterLeft] = [innerRight, outerRight, innerLeft, outerLeft].map((each) => each.mod);
  for (;;) {
    const nextLeft = lastBelow(innerLeft), nextRight = firstBelow(innerRight);
    if (!nextLeft || !nextRight) {
      if (nextLeft && !lastBelow(outerRight)) {
        outerRight.thread = nextLeft;
        outerRight.mod += sumInnerLeft - sumOuterRight;
      }
      if (nextRight && !firstBelow(outerLeft)) {
        outerLeft.thread = nextRight;
        outerLeft.mod += sumInnerRight - sumOuterLeft;
        ancestor = node;
      }
      return ancestor;
    }
    [innerLeft, innerRight, outerLeft, outerRight] = [nextLeft, nextRight, firstBelow(outerLeft), lastBelow(outerRight)];
    outerRight.ancestor = node;
    const gap = innerLeft.prelim + sumInnerLeft - innerRight.prelim - sumInnerRight + 1;
    if (gap > 0) {
      const from = innerLeft.ancestor.above === node.above ? innerLeft.ancestor : ancestor;
      const each = gap / (node.number - from.number);
      node.change -= each;
      node.shift += gap;
      from.change += each;
      node.prelim += gap;
      node.mod += gap;
      sumInnerRight += gap;
      sumOuterRight += gap;
    }
    sumInnerLeft += innerLeft.mod;
    sumInnerRight += innerRight.mod;
    sumOuterLeft += outerLeft.mod;
    sumOuterRight += outerRight.mod;
  }
}
