"""Plots of the report, as inline SVG."""
