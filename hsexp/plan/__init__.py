"""From a typed launch to the cells of a campaign, named by their content."""
