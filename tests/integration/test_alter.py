"""Indexes that are altered on a real cluster: renamed at once, or rebuilt beside the old one."""

from __future__ import annotations
