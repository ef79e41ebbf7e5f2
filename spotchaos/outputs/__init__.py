"""Programs judged by what they leave: readers by content, masks, and a comparison."""
