"""KV that leaves a worker: hot prefixes on disk, sessions that move. Imports `native` and the plan only."""
