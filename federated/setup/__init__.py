"""Setting up a federation: folders, keys, certificates, and how roles enrol each other."""
