"""Flawed programs, their mended twins, and correct ones that look flawed."""
