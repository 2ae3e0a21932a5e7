"""Force and parameters sampled together through the solver: fixed waves, chained sensitivities, many short chains."""
