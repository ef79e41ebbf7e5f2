"""One object in a store for each record; what is there is done."""

import json

import boto3
from botocore.exceptions import ClientError

RECORDS = 8

store = boto3.client("s3")
try:
    store.head_bucket(Bucket="results")
except ClientError:
    store.create_bucket(Bucket="results")
listed = store.list_objects_v2(Bucket="results").get("Contents", ())
there = {entry["Key"] for entry in listed}
total = 0
for number in range(RECORDS):
    key = f"out/{number}.json"
    if key in there:
        continue
    total += number
    body = json.dumps({"id": number, "square": number**2})
    store.put_object(Bucket="results", Key=key, Body=body)
