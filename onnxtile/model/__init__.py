"""Models on disk and in memory: load, bind dimensions, resolve shapes, know the constants, check, save."""
