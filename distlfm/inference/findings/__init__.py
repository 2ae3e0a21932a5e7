"""What is reported with a result: estimates, scores, residuals, and data that contradict the priors."""
