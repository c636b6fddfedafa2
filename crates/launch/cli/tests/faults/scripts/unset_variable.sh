#!/bin/bash
# A variable that the job script forgot.
set -u
cd "$DATASET_FOLDER"
