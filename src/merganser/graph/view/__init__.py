"""A part of the graph as one HTML file."""
