"""How many tokens and what weight lie at which distance from the largest logit, and the bins in which filters end."""
