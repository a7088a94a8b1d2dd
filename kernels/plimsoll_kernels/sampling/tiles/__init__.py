"""The one reading of all logits: of each tile of a row its largest logit and its weight."""
