"""What launchers use around a store: `store` to meet at it, `distributed` to make it."""
