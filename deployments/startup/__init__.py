"""Checks and plans made before an application starts, and on each of its nodes."""
