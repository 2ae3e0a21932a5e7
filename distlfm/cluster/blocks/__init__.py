"""Work in blocks: what a job is, who has which block, and how a failed block is rescued."""
