"""Models on disk and in memory: load, bind dimensions, resolve shapes, check, save."""
