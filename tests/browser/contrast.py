"""The contrast between two colors, as the guidelines for accessible pages measure it."""

from __future__ import annotations


def luminance(color: str) -> float:
    channels = [float(channel) / 255 for channel in color[color.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    dark, light = sorted((luminance(one), luminance(two)))
    return (light + 0.05) / (dark + 0.05)
