"""Many instances at once: where they come from, how they become a job, and how its blocks are worked through."""
