"""Models from Hugging Face's config.json: the sizes of their states, without their weights."""
