"""Models in Flax; no other package imports Flax. `task.classification` turns a module into a `Task`."""
