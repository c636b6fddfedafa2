//! Certificates of workers for the tests.

use std::sync::Arc;

use rdzv_rpc::transport::Identity;
use rdzv_testing::TestAuthority;

/// Creates a certificate for this worker.
pub(crate) fn identity(authority: &TestAuthority, name: &str) -> Arc<Identity> {
    let (certificate, key) = authority.files(name);
    Arc::new(Identity::from_files(&certificate, &key, &authority.file()).unwrap())
}
