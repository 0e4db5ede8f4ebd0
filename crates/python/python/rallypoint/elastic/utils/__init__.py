"""Helpers for launchers: `distributed` creates the store of a job, and `store` synchronizes ranks through it."""
