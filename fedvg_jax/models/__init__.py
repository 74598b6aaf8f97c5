"""Models in Flax Linen; the only room that knows Flax. `task.classification` turns a module into a `Task`."""
