"""Sites fine-tune and query the operator through Flower; their patients' data stay home."""
