"""Cases in which a fit may be wrong, each with its truth, and the rule by which an answer is right."""
