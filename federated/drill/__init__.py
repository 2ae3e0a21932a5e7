"""A drill: attacks on a federation that is made for it, by a coordinator of its own that means harm."""
