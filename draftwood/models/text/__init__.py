"""From text to tokens and back: tokenizers, chat templates."""
