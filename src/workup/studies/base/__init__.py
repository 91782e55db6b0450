"""What several studies and audits share."""
