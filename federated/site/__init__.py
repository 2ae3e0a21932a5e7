"""A site: its patients, its policy, what it computes, and what it spends of its patients' privacy."""
