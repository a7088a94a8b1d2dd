"""One short module an architecture: config.json to DecoderSpec."""
