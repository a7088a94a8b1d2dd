"""Model families: a short module for each architecture translates config.json to a DecoderSpec."""
