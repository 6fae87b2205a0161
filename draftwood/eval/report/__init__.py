"""An evaluation as a page that anyone can read: one HTML file, and its figures as files of their own."""
