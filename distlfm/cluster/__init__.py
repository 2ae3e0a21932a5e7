"""Work in blocks: what a job is, who does it, and how a bad row is kept from spoiling its neighbours."""
