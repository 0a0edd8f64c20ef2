"""MosaicML Streaming and LLM-Foundry."""
