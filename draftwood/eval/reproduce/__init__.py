"""The papers' tables and figures again, on a pair of models of one's own: what they give beside what is measured."""
