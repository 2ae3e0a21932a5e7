"""A page on this machine for a site: its data, the operator's answer, and a full fit to compare with."""
