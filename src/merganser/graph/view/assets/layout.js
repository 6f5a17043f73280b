"use strict";
// A force layout: edges pull, near nodes push each other away, and all drift to the middle.
class Layout {
  static reach = 420;
  static length = 105;

  constructor() {
    this.nodes = [];
    this.links = [];
    this.heat = 0;
  }

  // Nodes have x, y and held; links have from and to. What is new is put in its place before.
  set(nodes, links, heat) {
    this.nodes = nodes;
    this.links = links.filter(link => link.from !== link.to);
    for (const node of nodes) node.degree = 0;
    for (const {from, to} of this.links) {
      from.degree += 1;
      to.degree += 1;
    }
    this.warm(heat);
  }

  warm(heat) {
    this.heat = Math.max(this.heat, heat);
  }

  // Moves everything a little; false when it has come to rest.
  tick() {
    if (this.heat < 0.01) return false;
    this.pull();
    this.push();
    for (const node of this.nodes) {
      node.vx = (node.vx - node.x * 0.012 * this.heat) * 0.62;
      node.vy = (node.vy - node.y * 0.016 * this.heat) * 0.62;
      if (node.held) node.vx = node.vy = 0;
      node.x += Math.max(-60, Math.min(60, node.vx));
      node.y += Math.max(-60, Math.min(60, node.vy));
    }
    this.heat *= 0.975;
    return true;
  }

  pull() {
    for (const {from, to} of this.links) {
      const [dx, dy, distance] = Layout.between(from, to);
      // Nodes with many edges would be torn about by each of them.
      const strength = this.heat * 0.55 / Math.min(from.degree, to.degree);
      const change = (distance - Layout.length) / distance * strength;
      const share = from.degree / (from.degree + to.degree);
      from.vx += dx * change * (1 - share);
      from.vy += dy * change * (1 - share);
      to.vx -= dx * change * share;
      to.vy -= dy * change * share;
    }
  }

  push() {
    const cells = new Map();
    const place = value => Math.floor(value / Layout.reach);
    for (const node of this.nodes) {
      const name = `${place(node.x)} ${place(node.y)}`;
      if (!cells.has(name)) cells.set(name, []);
      cells.get(name).push(node);
    }
    for (const node of this.nodes) {
      for (let column = -1; column <= 1; column += 1) {
        for (let row = -1; row <= 1; row += 1) {
          const others = cells.get(`${place(node.x) + column} ${place(node.y) + row}`) ?? [];
          for (const other of others) if (other.order > node.order) this.part(node, other);
        }
      }
    }
  }

  part(one, two) {
    const [dx, dy, distance] = Layout.between(one, two);
    if (distance > Layout.reach) return;
    const near = distance < 64 ? (64 - distance) * 0.12 : 0;
    const change = this.heat * (620 / distance * (1 - distance / Layout.reach) + near) / distance;
    one.vx -= dx * change;
    one.vy -= dy * change;
    two.vx += dx * change;
    two.vy += dy * change;
  }

  static between(one, two) {
    // Two nodes in one place part in a direction of their own.
    const dx = two.x - one.x || Math.cos(one.order) * 0.1;
    const dy = two.y - one.y || Math.sin(one.order) * 0.1;
    return [dx, dy, Math.hypot(dx, dy) || 0.1];
  }
}
