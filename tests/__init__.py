"""A package, so that `tests.support` is looked for here, and not in a `tests` that another distribution installed."""
