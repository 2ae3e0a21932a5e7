"""Templates of pages; a package, so that wheels carry them."""
