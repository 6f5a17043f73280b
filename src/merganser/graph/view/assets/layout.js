"use strict";
// A force layout: edges pull, near nodes push each other away, and all drift to the middle.
class Layout {
  static length = 105;

  constructor() {
    this.nodes = [];
    this.links = [];
    this.heat = 0;
    this.reach = 420;
    this.gravity = 1;
    this.cooling = 0.975;
  }

  // Nodes have x, y and held; links have from and to. What is new is put in its place before.
  set(nodes, links, heat) {
    this.nodes = nodes;
    // Many nodes push only what is near, and come to rest sooner.
    this.reach = Math.max(180, Math.min(420, 420 * Math.sqrt(500 / Math.max(1, nodes.length))));
    this.gravity = (this.reach / 420) ** 2;
    this.cooling = nodes.length > 800 ? 0.955 : 0.975;
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
      node.vx = (node.vx - node.x * 0.012 * this.gravity * this.heat) * 0.62;
      node.vy = (node.vy - node.y * 0.016 * this.gravity * this.heat) * 0.62;
      if (node.held) node.vx = node.vy = 0;
      node.x += Math.max(-60, Math.min(60, node.vx));
      node.y += Math.max(-60, Math.min(60, node.vy));
    }
    this.heat *= this.cooling;
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
    const place = value => Math.floor(value / this.reach);
    // One number for a column and a row.
    const width = 65536;
    for (const node of this.nodes) {
      node.cell = place(node.x) * width + place(node.y);
      if (!cells.has(node.cell)) cells.set(node.cell, []);
      cells.get(node.cell).push(node);
    }
    for (const node of this.nodes) {
      for (const step of [-width - 1, -width, -width + 1, -1, 0, 1, width - 1, width, width + 1]) {
        const others = cells.get(node.cell + step);
        if (others) for (const other of others) if (other.order > node.order) this.part(node, other);
      }
    }
  }

  part(one, two) {
    if ((two.x - one.x) ** 2 + (two.y - one.y) ** 2 > this.reach ** 2) return;
    const [dx, dy, distance] = Layout.between(one, two);
    const near = distance < 64 ? (64 - distance) * 0.12 : 0;
    const change = this.heat * (620 / distance * (1 - distance / this.reach) + near) / distance;
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
